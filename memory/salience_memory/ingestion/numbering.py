"""Clause numbers: what stands before a clause, and in which sequences it can be counted."""

import re
from dataclasses import dataclass

__all__ = ["Label", "LabelReading", "parse_label"]


@dataclass(frozen=True, slots=True)
class LabelReading:
    """One way to count a label: `(i)` is both the ninth letter and the first roman numeral."""

    style: str
    values: tuple[int, ...]
    """The number with those above it: 3.2 is (3, 2); (b) is (2,)."""


@dataclass(frozen=True, slots=True)
class Label:
    """A clause number at the head of a line."""

    text: str
    """As it is written, without what closes it: `3.2`, `(a)`, `Article 5`, `第五条`."""
    rest: str
    """The line after it."""
    readings: tuple[LabelReading, ...]
    is_weak: bool = False
    """Looks like other things too (`5 litres`, `A. Smith`): counts only in sequence."""


_CJK_DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_CJK_TENS = {"十": 10, "百": 100, "千": 1000}
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_ROMAN_FORM = re.compile(r"m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})")


def _cjk_number(text: str) -> int:
    if text.isdigit() and text[0] not in _CJK_DIGITS:
        return int(text)
    if not any(sign in _CJK_TENS for sign in text):
        return int("".join(str(_CJK_DIGITS[sign]) for sign in text))
    total, digit = 0, 0
    for sign in text:
        if sign in _CJK_TENS:
            total += (digit or 1) * _CJK_TENS[sign]
            digit = 0
        else:
            digit = _CJK_DIGITS[sign]
    return total + digit


def _count(token: str, style: str) -> tuple[LabelReading, ...]:
    """Every reading of a number, letter or numeral; `style` tells brackets and words apart."""
    if token[0].isdigit():
        values = tuple(int(part) for part in re.findall(r"\d+", token))
        return (LabelReading(f"{style}1:{len(values)}", values),)
    if token[0] in _CJK_DIGITS or token[0] in _CJK_TENS:
        return (LabelReading(f"{style}一", (_cjk_number(token),)),)
    case = "A" if token.isupper() else "a"
    small = token.lower()
    readings: list[LabelReading] = []
    if small.isascii() and len(set(small)) == 1:  # a is 1, z is 26; aa is 27, bb is 28, as lawyers count
        letter = 26 * (len(small) - 1) + ord(small[0]) - ord("a") + 1
        readings.append(LabelReading(f"{style}{case}", (letter,)))
    if _ROMAN_FORM.fullmatch(small):
        signs = [_ROMAN[sign] for sign in small]
        roman = sum(-v if i + 1 < len(signs) and v < signs[i + 1] else v for i, v in enumerate(signs))
        readings.append(LabelReading(f"{style}{'I' if case == 'A' else 'i'}", (roman,)))
    return tuple(readings)


_NUMERAL = r"\d{1,3}|[a-z]{1,2}|[A-Z]{1,2}|[ivxl]{1,6}|[IVXL]{1,6}|[一二三四五六七八九十百]{1,4}"
_WORDS = (
    "part|book|title|chapter|article|section|clause|schedule|annex|appendix|exhibit|rule|regulation|"
    "artikel|abschnitt|kapitel|anlage|anhang|titre|chapitre"
)
_WORD = re.compile(
    rf"(?P<word>{_WORDS}|§§?|art\.|sec\.)\s*(?P<number>\d+(?:\.\d+)*|[IVXLC]+|[A-Z])(?P<suffix>[a-z]?)"
    r"(?:[.:)](?!\d)|(?=\s|$|[—–-]))\s*(?:[—–:-]\s*)?",
    re.IGNORECASE,
)
_DI = re.compile(
    r"第\s*(?P<number>[0-9０-９]+|[〇零一二三四五六七八九十百千两]+)\s*(?P<unit>[编編部篇章节節条條款項项号號])"
    r"(?P<suffix>[之の][一二三四五六七八九十]+)?[\s\u3000:：、]*"
)
_REFERRED = re.compile(r"[的、和及或与與第所之中，,。；至到にはがをのへ]|规定|規定|に|から|まで")
"""What follows a number that is only spoken of: 第五条的规定."""
_MARKS: tuple[tuple[str, re.Pattern[str], bool], ...] = (
    (
        ".",
        re.compile(r"(?P<number>\d{1,3}(?:\.\d{1,2}(?!\d))+)(?:[.．)）]?(?=\s|$)|[.．]?(?=[^\W\d_]))\s*"),
        False,
    ),
    (".", re.compile(r"(?P<number>\d{1,3})[.．](?!\d)\s*(?=\D|$)"), False),
    (".", re.compile(r"(?P<number>\d{1,3})、\s*"), False),
    ("()", re.compile(rf"[(（](?P<number>{_NUMERAL})[)）]\s*"), False),
    (")", re.compile(rf"(?P<number>{_NUMERAL})[)）]\s*"), False),
    ("、", re.compile(r"(?P<number>[一二三四五六七八九十百]{1,4})[、．.]\s*"), False),
    (".", re.compile(r"(?P<number>[A-Za-z]|[ivxl]{1,6}|[IVXL]{1,6})\.\s+"), True),
    (".", re.compile(r"(?P<number>\d{1,3}(?:\.\d{1,2}(?!\d))*)\s+(?=\S)"), True),
)
_CIRCLED = re.compile(r"(?P<number>[①-⑳])\s*")
_BULLET = re.compile(r"(?P<number>[•▪◦●○■□‣∙·–—*-])\s+")


def parse_label(text: str) -> Label | None:
    """The clause number that a line begins with, or None.

    Knows 1. 1.1 1) (1) (a) (iv) A. Article 5, Section 3.2, § 7, 第五条, 第3章, 一、 （一） ① and bullets.
    """
    if found := _WORD.match(text):
        number, rest = found["number"], text[found.end() :]
        if number[0].isdigit() or number.isupper():  # "section a" is prose
            readings = _count(number, f"{found['word'].casefold().rstrip('s.')} ")
            written = f"{found['word']} {number}{found['suffix']}"
            return Label(written, rest, readings, is_weak=rest[:1].islower() or rest[:1] in tuple(",;"))
    if found := _DI.match(text):
        rest = text[found.end() :]
        is_followed = text[found.end() - 1 : found.end()] in tuple(" \u3000:：、") or not rest
        readings = (LabelReading(f"第{found['unit']}", (_cjk_number(found["number"]),)),)
        written = re.sub(r"\s+", "", found.group().rstrip(" \u3000:：、"))
        return Label(written, rest, readings, is_weak=not is_followed and _REFERRED.match(rest) is not None)
    for style, pattern, is_weak in _MARKS:
        if (found := pattern.match(text)) and (readings := _count(found["number"], style)):
            number = found["number"]
            written = {"()": f"({number})", ")": f"{number})", "、": f"{number}、"}.get(style, number)
            return Label(written, text[found.end() :], readings, is_weak)
    if found := _CIRCLED.match(text):
        reading = LabelReading("①", (ord(found["number"]) - ord("①") + 1,))
        return Label(found["number"], text[found.end() :], (reading,))
    if found := _BULLET.match(text):
        return Label(found["number"], text[found.end() :], (LabelReading(f"bullet {found['number']}", ()),))
    return None
