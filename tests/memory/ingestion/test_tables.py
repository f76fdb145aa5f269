"""Tables of PDFs: every row with its headers and lines, over page breaks too."""

EDGES = (72, 200, 472)


def rows(clauses):
    return [(clause.content, clause.location) for clause in clauses if clause.value is not None]


def test_each_row_is_a_clause_with_its_headers(pdf, read):
    pdf.line("1. Prices are as follows.")
    pdf.table([("Plan", "Price"), ("Basic", "10 EUR"), ("Pro", "30 EUR\na month")], EDGES).line(
        "2. That is all."
    )
    clauses, _ = read(pdf)
    assert rows(clauses) == [
        ("Plan: Basic; Price: 10 EUR", "page:1, line:3"),
        ("Plan: Pro; Price: 30 EUR a month", "page:1, line:4-5"),
    ]
    assert clauses[1].key == "1 > table 1 > Basic"
    assert clauses[1].value == {"Plan": "Basic", "Price": "10 EUR"}
    assert clauses[-1].location == "page:1, line:6"


def test_a_table_goes_on_over_the_page_under_its_header(pdf, read):
    for repeated in (True, False):
        pdf.new_page().line("1. Prices.").skip(560)
        pdf.table([("Plan", "Price"), ("Basic", "10 EUR")], EDGES)
        rest = [("Pro", "30 EUR"), ("Max", "90 EUR")]
        pdf.new_page().table([("Plan", "Price"), *rest] if repeated else rest, EDGES)
    clauses, _ = read(pdf)
    contents = ["Plan: Basic; Price: 10 EUR", "Plan: Pro; Price: 30 EUR", "Plan: Max; Price: 90 EUR"]
    assert [content for content, _ in rows(clauses)] == contents * 2
    assert [location for _, location in rows(clauses)][3:] == [
        "page:4, line:3",
        "page:5, line:1",
        "page:5, line:2",
    ]


def test_a_row_cut_by_the_page_is_joined_or_refused(pdf, read):
    first = [("Plan", "Price"), ("Pro", "30 EUR a month and the")]
    pdf.line("1. Prices.").skip(560).table(first, EDGES)
    pdf.new_page().table([("", "first month free"), ("Max", "90 EUR")], EDGES)
    clauses, refused = read(pdf)
    assert rows(clauses)[0] == (
        "Plan: Pro; Price: 30 EUR a month and the first month free",
        "page:1, line:3 - page:2, line:1",
    )
    assert refused == []


def test_a_row_whose_rest_is_missing_is_refused(pdf, read):
    pdf.line("1. Prices.").skip(560).table([("Plan", "Price"), ("Pro", "30 EUR a month and the")], EDGES)
    pdf.new_page().line("2. The next clause.")
    clauses, refused = read(pdf)
    assert [clause.content for clause in clauses] == ["1. Prices.", "2. The next clause."]
    assert [(refusal.key, refusal.location) for refusal in refused] == [
        ("1 > table 1 > Pro", "page:1, line:3")
    ]


def test_a_box_around_text_is_no_table(pdf, read):
    pdf.page.draw_rect((60, 75, 500, 130))
    pdf.line("1. A clause in a box.").line("2. Another one.")
    assert [clause.content for clause in read(pdf)[0]] == ["1. A clause in a box.", "2. Another one."]
