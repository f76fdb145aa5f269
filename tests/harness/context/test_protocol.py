"""The first line: versions, downgrade or stop, and what a consumer refuses."""

import pytest

from salience.context import OnMismatch, check_header, negotiate_version, parse_header
from salience.errors import ProtocolMismatch

LINE = "[MODEL_CONTEXT_PROTOCOL v1.2 | fp:sha256:0123456789abcdef]"


def test_a_header_reads_back_as_it_was_written():
    header = parse_header(f"{LINE}\nmore")
    assert (header.version, header.fingerprint, str(header)) == ("1.2", "0123456789abcdef", LINE)


@pytest.mark.parametrize("text", ["", "hi", f" {LINE}", LINE.replace("1.2", "1"), f"{LINE}x", f"x\n{LINE}"])
def test_a_text_without_the_protocols_line_is_refused(text: str):
    with pytest.raises(ProtocolMismatch, match="context must begin with"):
        parse_header(text)


def test_a_consumer_refuses_versions_and_templates_it_does_not_know():
    assert check_header(LINE, fingerprint="0123456789abcdef").version == "1.2"
    with pytest.raises(ProtocolMismatch, match=r"protocol version must be 1\.1, got 1\.2"):
        check_header(LINE, supported=["1.1"])
    with pytest.raises(ProtocolMismatch, match="template fingerprint must be fedc"):
        check_header(LINE, fingerprint="fedcba9876543210")


def test_a_newer_template_is_downgraded_or_stopped_by_config():
    assert negotiate_version("1.2", ["1.1", "1.2"], OnMismatch.STOP) == "1.2"
    assert negotiate_version("1.2", ["1.1"], OnMismatch.DOWNGRADE) == "1.1"
    assert negotiate_version("2.10", ["1.1", "1.2"], OnMismatch.DOWNGRADE) == "1.1"
    with pytest.raises(ProtocolMismatch, match=r"must be 1\.1, got a template of 1\.2"):
        negotiate_version("1.2", ["1.1"], OnMismatch.STOP)


@pytest.mark.parametrize(("wanted", "supported"), [("1.1", ["1.2"]), ("1.0", ["1.1"]), ("2.0", ["3.0"])])
def test_nothing_older_stands_in_for_what_is_wanted(wanted: str, supported: list[str]):
    with pytest.raises(ProtocolMismatch):
        negotiate_version(wanted, supported, OnMismatch.DOWNGRADE)
