"""Documents in the store: provenance, new editions, owners, and nothing done by halves."""

import pytest

from salience_memory.errors import DocumentUnreadable
from salience_memory.ingestion import DocumentFields, ingest_document
from salience_memory.records import MemoryType, Verification
from salience_memory.scopes import NOBODY, Scope, Viewer

FIRST = (
    "# Lease\n\n1. Rent is 900 euros a month.\n2. No dogs are allowed here.\n3. Quiet hours start at ten.\n"
)
SECOND = (
    "# Lease\n\n1. A deposit is due before anything else.\n2. Rent is 950 euros a month.\n"
    "3. Quiet hours start at ten.\n4. The garden is shared.\n"
)


def counts(report):
    return [
        len(getattr(report, sort))
        for sort in ("added", "changed", "moved", "unchanged", "vanished", "refused")
    ]


def contents(store, viewer=NOBODY):
    return {memory.content: memory for memory in store.list(viewer)}


def test_a_clause_is_an_external_memory_that_tells_where_it_stands(store, save):
    path = save(FIRST)
    report = ingest_document(store, path, source_id="lease.md", fields=DocumentFields(tags=("domain:law",)))
    assert counts(report) == [3, 0, 0, 0, 0, 0]
    memory = contents(store)["2. No dogs are allowed here."]
    assert (memory.type, memory.key, memory.trust) == (MemoryType.EXTERNAL, "lease.md > Lease > 2", 0.6)
    assert memory.tags == ("domain:law", "source:lease.md", "status:active", "type:external")
    provenance = memory.provenance
    assert provenance is not None
    assert (provenance.source_id, provenance.source_format) == ("lease.md", "markdown")
    assert (provenance.source_location, provenance.content_sha256) == ("line:4", report.content_sha256)


def test_a_new_edition_keeps_ids_and_reports_what_changed(store, save, clock):
    ingest_document(store, save(FIRST), source_id="lease")
    before = contents(store)
    clock.now_ns += 10**9
    report = ingest_document(store, save(SECOND), source_id="lease")
    assert counts(report) == [2, 1, 0, 1, 1, 0]
    after = contents(store)
    rent = after["2. Rent is 950 euros a month."]
    assert rent.memory_id == before["1. Rent is 900 euros a month."].memory_id
    assert (rent.version, rent.key) == (2, "lease > Lease > 2")
    assert [version.content for version in store.history(rent.memory_id, NOBODY)] == [
        "1. Rent is 900 euros a month.",
        "2. Rent is 950 euros a month.",
    ]
    quiet = after["3. Quiet hours start at ten."]
    assert (quiet.memory_id, quiet.version) == (before["3. Quiet hours start at ten."].memory_id, 1)
    assert quiet.verified_ns == clock.now_ns
    assert [clause.key for clause in report.vanished] == ["lease > Lease > 2"]
    assert "2. No dogs are allowed here." in after


def test_the_same_document_again_changes_nothing(store, save):
    ingest_document(store, save(FIRST), source_id="lease", fields=DocumentFields(semantic_weight=0.8))
    before = [memory.model_dump(exclude={"seq"}) for memory in store.list(NOBODY)]
    assert counts(ingest_document(store, save(FIRST), source_id="lease")) == [0, 0, 0, 3, 0, 0]
    assert [memory.model_dump(exclude={"seq"}) for memory in store.list(NOBODY)] == before


def test_a_renumbered_clause_moves_and_its_old_number_is_another_one(store, save):
    ingest_document(store, save(FIRST), source_id="lease")
    before = contents(store)
    inserted = FIRST.replace("2. No", "2. Cats are welcome at all times.\n3. No").replace(
        "3. Quiet", "4. Quiet"
    )
    report = ingest_document(store, save(inserted), source_id="lease")
    assert [clause.memory_id for clause in report.changed] == [
        before["2. No dogs are allowed here."].memory_id,
        before["3. Quiet hours start at ten."].memory_id,
    ]
    assert [clause.key for clause in report.added] == ["lease > Lease > 2"]
    assert len({memory.memory_id for memory in store.list(NOBODY)}) == 4


def test_a_clause_whose_place_alone_differs_is_moved(store, save):
    ingest_document(store, save(FIRST), source_id="lease")
    report = ingest_document(store, save(FIRST.replace("# Lease\n", "\n\n# Lease\n")), source_id="lease")
    assert counts(report) == [0, 0, 3, 0, 0, 0]
    assert {memory.provenance.source_location for memory in store.list(NOBODY)} == {
        "line:5",
        "line:6",
        "line:7",
    }


def test_pruning_forgets_what_vanished_and_only_that(store, save):
    ingest_document(store, save(FIRST), source_id="lease")
    ingest_document(store, save("# Other\n\n1. Something else.\n"), source_id="other")
    report = ingest_document(store, save(SECOND), source_id="lease", prune=True)
    assert report.is_pruned
    assert "2. No dogs are allowed here." not in contents(store)
    assert "1. Something else." in contents(store)


def test_a_dry_run_reports_the_same_and_stores_nothing(store, save):
    ingest_document(store, save(FIRST), source_id="lease")
    seq = store.latest_seq()
    dry = ingest_document(store, save(SECOND), source_id="lease", prune=True, dry_run=True)
    assert store.latest_seq() == seq
    assert ingest_document(store, save(SECOND), source_id="lease", prune=True) == dry


def test_owners_have_their_own_editions(store, save):
    for user in ("ann", "bob"):
        fields = DocumentFields(scope=Scope.USER, user_id=user)
        assert counts(ingest_document(store, save(FIRST), source_id="lease", fields=fields)) == [
            3,
            0,
            0,
            0,
            0,
            0,
        ]
    fields = DocumentFields(scope=Scope.USER, user_id="ann")
    ingest_document(
        store, save("# Lease\n\n1. Nothing else.\n"), source_id="lease", fields=fields, prune=True
    )
    assert len(store.list(Viewer(user_id="ann"))) == 1
    assert len(store.list(Viewer(user_id="bob"))) == 3
    assert store.list(NOBODY) == []


def test_a_clause_refused_now_stays_as_it_was(store, pdf, save):
    whole = (
        "2. The tenant pays every invoice within thirty days of its receipt at the place and in the way that"
    )
    pdf.line("1. Scope is everything.").skip(620).paragraph(whole)
    source = save(pdf, "cut")
    ingest_document(store, save("1. Scope is everything.\n2. The tenant pays.\n"), source_id="lease")
    report = ingest_document(store, source, source_id="lease", prune=True)
    assert (len(report.refused), report.vanished) == (1, ())
    assert "2. The tenant pays." in contents(store)


def test_what_a_person_changed_stays_unless_said_otherwise(store, save):
    ingest_document(
        store, save(FIRST), source_id="lease", fields=DocumentFields(verification=Verification.VERIFIED)
    )
    dogs = contents(store)["2. No dogs are allowed here."]
    store.update(dogs.memory_id, NOBODY, changes={"semantic_weight": 0.95}, reason="matters")
    ingest_document(
        store, save(SECOND.replace("4. The", "4. No dogs are allowed here.\n5. The")), source_id="lease"
    )
    moved = store.get(dogs.memory_id, NOBODY)
    assert (moved.semantic_weight, moved.content) == (0.95, "4. No dogs are allowed here.")
    assert moved.provenance is not None
    assert moved.provenance.verification is Verification.VERIFIED
    fields = DocumentFields(semantic_weight=0.7)
    ingest_document(store, save(SECOND), source_id="lease", fields=fields)
    assert contents(store)["3. Quiet hours start at ten."].semantic_weight == 0.7


def test_an_archived_clause_that_is_still_in_the_document_comes_back(store, save):
    ingest_document(store, save(FIRST), source_id="lease")
    dogs = contents(store)["2. No dogs are allowed here."]
    store.archive(dogs.memory_id, NOBODY)
    ingest_document(store, save(FIRST), source_id="lease")
    assert contents(store)["2. No dogs are allowed here."].memory_id == dogs.memory_id


def test_a_failure_leaves_the_store_as_it_was(store, save, monkeypatch):
    ingest_document(store, save(FIRST), source_id="lease")
    seq = store.latest_seq()
    with pytest.raises(ValueError, match="semantic_weight must be in"):
        ingest_document(store, save(SECOND), source_id="lease", fields=DocumentFields(semantic_weight=1.0))
    monkeypatch.setattr(type(store), "declare", _fail)
    with pytest.raises(RuntimeError, match="no room"):
        ingest_document(store, save(SECOND), source_id="lease", prune=True)
    assert store.latest_seq() == seq


def _fail(*arguments, **keywords):
    raise RuntimeError("no room")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_id": " "}, "source_id must hold text, got ' '"),
        (
            {"source_id": "x", "fields": DocumentFields(type=MemoryType.TASK)},
            "type of a document's memories must be external or constraint, got task",
        ),
        ({"source_id": "x", "fields": DocumentFields(scope=Scope.USER)}, "user_id must be given"),
    ],
)
def test_what_cannot_be_stored_is_refused(store, save, options, message):
    with pytest.raises(ValueError, match=message):
        ingest_document(store, save(FIRST), **options)
    assert store.count() == 0


def test_a_document_without_a_whole_clause_is_refused(store, save):
    with pytest.raises(DocumentUnreadable, match="document x must hold a whole clause, got 0 broken off"):
        ingest_document(store, save("# Only a title\n"), source_id="x")
