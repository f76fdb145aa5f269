"""PDF, clause by clause: places, page breaks, columns, headers, and what is refused."""

import pymupdf
import pytest

from salience_memory.errors import DocumentUnreadable
from salience_memory.ingestion import read_document, split_clauses

LONG = (
    "2.1 The customer shall pay every invoice within thirty days of its receipt, and where it does not pay "
    "in time it shall owe interest at the rate of eight per cent a year above the base"
)


def keys(clauses):
    return [clause.key for clause in clauses]


def test_clauses_carry_their_headings_and_lines(pdf, read):
    pdf.line("Agreement", size=18, font="hebo").line("1. Scope", size=12, font="hebo")
    pdf.paragraph("1.1 " + "This clause is long enough to be wrapped over two lines of the page. " * 2)
    pdf.line("1.2 The supplier shall:").line("(a) deliver; and", x=90).line("(b) insure.", x=90)
    clauses, refused = read(pdf)
    assert refused == []
    assert [(clause.key, clause.location) for clause in clauses] == [
        ("Agreement > 1 Scope > 1.1", "page:1, line:3-4"),
        ("Agreement > 1 Scope > 1.2 > (a)", "page:1, line:5; page:1, line:6"),
        ("Agreement > 1 Scope > 1.2 > (b)", "page:1, line:5; page:1, line:7"),
    ]
    assert clauses[1].content == "1.2 The supplier shall:\n(a) deliver; and"


def test_a_clause_over_a_page_break_is_joined_across_header_and_footer(pdf, read):
    for number in (1, 2):
        if number == 2:
            pdf.new_page()
        pdf.line("ACME Agreement", y=40, size=9).line(f"Page {number} of 2", y=815, size=9)
        if number == 1:
            pdf.line("1. Scope is everything.").skip(620).paragraph(LONG)
        else:
            pdf.paragraph("rate of the central bank. It may be waived.").skip().line("2.2 Prices are fixed.")
    clauses, refused = read(pdf)
    assert refused == []
    assert [(clause.key, clause.location) for clause in clauses] == [
        ("1", "page:1, line:2"),
        ("2.1", "page:1, line:3 - page:2, line:2"),
        ("2.2", "page:2, line:3"),
    ]
    assert clauses[1].content == f"{LONG} rate of the central bank. It may be waived."


@pytest.mark.parametrize("follower", ["3. The next clause.", None, "scan"])
def test_a_clause_whose_rest_is_missing_is_refused_never_stored_half(pdf, read, follower):
    pdf.line("1. Scope is everything.").skip(620).paragraph(LONG)
    if follower is not None:
        pdf.new_page()
        if follower != "scan":
            pdf.line(follower)
    clauses, refused = read(pdf)
    assert keys(clauses) == ["1"] + (["3"] if follower not in (None, "scan") else [])
    (refusal,) = refused
    assert (refusal.key, refusal.location) == ("2.1", "page:1, line:2-3")
    assert refusal.beginning.startswith("2.1 The customer shall pay")
    assert refusal.reason == "it breaks off at the end of the page and nothing goes on with it"


def test_what_follows_an_unreadable_page_in_mid_sentence_is_refused_too(pdf, read):
    pdf.line("1. Scope is everything.").new_page().new_page().line("and of its affiliates.").skip(20).line(
        "2. Law."
    )
    clauses, refused = read(pdf)
    assert keys(clauses) == ["1", "2"]
    assert [refusal.reason for refusal in refused] == [
        "its beginning is missing: page 2 before it has no text"
    ]


def test_a_page_without_text_is_told(pdf, save):
    pdf.line("1. Scope is everything.").new_page()
    assert read_document(save(pdf)).warnings == ("page 2 has no text that can be read",)


def test_a_list_that_ends_with_the_page_is_not_broken_off(pdf, read):
    pdf.line("1. Pets:").skip(600).line("(a) cats; and", x=90).line("(b) dogs", x=90)
    pdf.new_page().line("2. The house rules hold.")
    clauses, refused = read(pdf)
    assert (keys(clauses), refused) == (["1 > (a)", "1 > (b)", "2"], [])


def test_a_word_cut_at_the_end_of_a_line_is_made_whole(pdf, read):
    pdf.line("1. It ends with-").line("out notice, after well-").line("known co-operation. Well-known it is.")
    assert (
        read(pdf)[0][0].content
        == "1. It ends without notice, after well-known co-operation. Well-known it is."
    )


def test_columns_are_read_one_after_the_other(pdf, read):
    pdf.line("A Study of Columns", x=180, size=18)
    top = pdf.y
    left = (
        "1. The left column begins and is told over several lines so that there is a gutter, and it goes on"
    )
    pdf.paragraph(left, width=200)
    pdf.y = top
    pdf.paragraph("in the right column, at its top. It ends here.", x=310, width=200).skip()
    pdf.paragraph("2. The second clause stands in the right column alone.", x=310, width=200)
    clauses, _ = read(pdf)
    assert keys(clauses) == ["A Study of Columns > 1", "A Study of Columns > 2"]
    assert clauses[0].content == f"{left} in the right column, at its top. It ends here."


def test_labels_before_values_are_no_columns(pdf, read):
    for name, value in (("Name:", "Ann"), ("City:", "Berlin"), ("Plan:", "Basic"), ("Term:", "2 years")):
        pdf.line(name, y=pdf.y).line(value, x=300)
    assert "Name: Ann" in read(pdf)[0][0].content


def test_article_numbers_at_the_top_of_pages_are_no_page_numbers(pdf, read):
    for number in range(1, 5):
        if number > 1:
            pdf.new_page()
        pdf.line("Confidential", y=30, size=9).line(f"- {number} -", x=290, y=820, size=9)
        pdf.line(f"Article {number}", y=60, font="hebo").paragraph(f"Clause of page {number} is whole.")
    clauses, _ = read(pdf)
    assert keys(clauses) == [f"Article {number} > ¶1" for number in range(1, 5)]
    assert "Confidential" not in "".join(clause.content for clause in clauses)


def test_a_title_below_its_number_belongs_to_it(pdf, read):
    pdf.line("Article 5", x=250).line("Definitions", x=250, font="hebo").skip(20).line("1. A term is a word.")
    assert keys(read(pdf)[0]) == ["Article 5 Definitions > 1"]


def test_footnotes_do_not_stand_between_the_halves_of_a_clause(pdf, read):
    pdf.line("1. Scope is everything.").skip(560).paragraph(LONG).line("1 See the annex.", y=790, size=8)
    pdf.new_page().paragraph("rate of the central bank.")
    clauses, refused = read(pdf)
    assert refused == []
    assert clauses[1].content == f"{LONG} rate of the central bank."
    assert [(clause.key, clause.location) for clause in clauses if "annex" in clause.content] == [
        ("Footnotes > 1", "page:1, line:4")
    ]


def test_chinese_articles_and_their_items(pdf, read):
    pdf.line("第一章 总则", font="china-s").paragraph(
        "第一条 为了保护当事人的合法权益，维护社会秩序和经济秩序，适应社会主义发展要求，根据宪法，制定本法。",
        font="china-s",
    )
    for line in ("第二条 本法调整下列关系：", "（一）人身关系；", "（二）财产关系。"):
        pdf.line(line, font="china-s")
    clauses, _ = read(pdf)
    assert keys(clauses) == [
        "第一章 总则 > 第一条",
        "第一章 总则 > 第二条 > (一)",
        "第一章 总则 > 第二条 > (二)",
    ]
    assert clauses[0].content.endswith("适应社会主义发展要求，根据宪法，制定本法。")
    assert clauses[2].content == "第二条 本法调整下列关系：\n（二）财产关系。"


def test_entries_of_a_table_of_contents_are_left_out(pdf, read):
    pdf.line("1 Scope . . . . . . . . . . . . 2").line("2 Law ............... 3").skip().line(
        "1. Scope is everything."
    )
    assert [clause.content for clause in read(pdf)[0]] == ["1. Scope is everything."]


def test_a_watermark_is_left_out_and_told(pdf, save):
    pdf.line("1. Scope is everything.")
    matrix = pymupdf.Matrix(45)
    point = pymupdf.Point(200, 400)
    pdf.page.insert_text(point, "DRAFT", fontsize=60, morph=(point, matrix))
    source = read_document(save(pdf))
    assert source.warnings == ("1 slanted line(s), such as a watermark, were left out",)
    assert [clause.content for clause in split_clauses(source)[0]] == ["1. Scope is everything."]


def test_a_rotated_page_reads_as_it_is_shown(pdf, read):
    pdf.page.insert_text((100, 700), "1. The first clause.", rotate=90)
    pdf.page.insert_text((120, 700), "2. The second clause.", rotate=90)
    pdf.page.set_rotation(90)
    assert [clause.content for clause in read(pdf)[0]] == ["1. The first clause.", "2. The second clause."]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pdf: pdf.data(), r"must have a text layer, got 1 page\(s\) of images or nothing"),
        (
            lambda pdf: pdf.line("x").data(encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="a", owner_pw="b"),
            "must be readable without a password, got an encrypted PDF",
        ),
        (lambda pdf: b"", "must hold text, got an empty file"),
        (lambda pdf: b"PK\x03\x04 a zip", "must be a PDF, got a file that does not begin as one"),
        (lambda pdf: b"%PDF-1.7 and nothing else", "must be a whole PDF, got a damaged one"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(pdf, save, capfd, make, message):
    path = save(make(pdf))
    with pytest.raises(DocumentUnreadable, match=message) as refused:
        read_document(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_a_damaged_file_that_can_be_repaired_is_told(pdf, save):
    pdf.line("1. Scope is everything.")
    data = pdf.data()
    source = read_document(save(data[: data.index(b"startxref")]))
    assert source.warnings == ("the PDF is damaged and was repaired: check that nothing is missing",)


def test_another_kind_of_file_is_refused_by_its_name(tmp_path):
    path = tmp_path / "document.docx"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(DocumentUnreadable, match=r"must be a PDF or Markdown file .* got '.docx'"):
        read_document(path)
    with pytest.raises(DocumentUnreadable, match=r"missing.pdf does not exist"):
        read_document(tmp_path / "missing.pdf")
