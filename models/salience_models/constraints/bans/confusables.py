"""Characters that may stand for a Latin letter when `confusables` is on: a small table, by eye.

Cyrillic and Greek letters of the same shape in either case (В and Н look Latin, so в and н are listed too),
the dotless i, and the digits and signs most written for letters. Many look-alikes are not here: whole other
scripts, `|` for l, `5` for s, two characters for one (`rn`, `vv`).
"""

__all__ = ["look_alikes"]

_STAND_FOR = {
    "a": "аα@",
    "b": "вβ",
    "c": "с",
    "d": "ԁ",
    "e": "еε3",
    "h": "һнη",
    "i": "іιı1",
    "j": "јϳ",
    "k": "кκ",
    "l": "ӏ1",
    "m": "мμ",
    "n": "ν",
    "o": "оοσ0",
    "p": "рρ",
    "q": "ԛ",
    "s": "ѕ$",
    "t": "тτ",
    "u": "υ",
    "v": "νѵ",
    "w": "ԝω",
    "x": "хχ",
    "y": "уυγ",
    "z": "ζ",
}


def _by_symbol() -> dict[str, str]:
    """For each symbol, the others of every class it is in: `1` stands for both `i` and `l`."""
    found: dict[str, set[str]] = {}
    for letter, others in _STAND_FOR.items():
        symbols = {letter, *others}
        for symbol in symbols:
            found.setdefault(symbol, set()).update(symbols - {symbol})
    return {symbol: "".join(sorted(others)) for symbol, others in found.items()}


_LOOK_ALIKES = _by_symbol()


def look_alikes(symbol: str) -> str:
    """The symbols that may be read as this one, itself left out."""
    return _LOOK_ALIKES.get(symbol, "")
