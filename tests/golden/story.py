"""The words that the golden runs train on: sentences by a fixed rule, nobody's prose.

`text.txt` is `story(SIZE)`; it lies there as a file so that no later Python can change it.
"""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("text.txt")
#: Characters of `text.txt`.
SIZE = 60_000

#: Words by blanks; a line below in a word is a blank.
NAMES = "Ada Bruno Carla Dmitri Edda Farid Greta Hugo Ines Jonas Kira Lars"
KINDS = "baker carpenter doctor farmer gardener miller painter sailor teacher weaver"
THINGS = (
    "apple basket boat book bridge candle chair clock coat drum field fire garden gate hammer"
    " harbour horse house kettle lamp letter loaf map mill mirror oven path piano plough river"
    " road roof rope sail stone table tower tree wall wheel window wool"
)
QUALITIES = (
    "blue bright broken cheap cold curious dry early empty famous green heavy honest late long"
    " narrow new old pale patient quiet red round sharp small strange warm wet white young"
)
DEEDS = (
    "admires borrows builds buys carries cleans draws finds forgets guards hides keeps lends"
    " measures mends moves opens paints praises sells shows studies visits watches"
)
PLACES = (
    "at_the_market behind_the_mill before_the_winter by_the_sea in_the_valley near_the_church"
    " on_the_hill over_the_bridge under_the_roof without_any_help with_great_care after_lunch"
)


class Draws:
    """Numbers that look random: a 64-bit congruential generator, the same everywhere."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit

    def one(self, words: str) -> str:
        """A word, those at the front of the list more often."""
        choice = words.split()
        return choice[min(self.below(len(choice)), self.below(len(choice)))].replace("_", " ")


def sentence(draws: Draws) -> str:
    """Who does what to what, and now and then where, and what came of it."""
    who = draws.one(NAMES) if draws.below(3) else f"the {draws.one(QUALITIES)} {draws.one(KINDS)}"
    parts = [who, draws.one(DEEDS), "the", draws.one(THINGS)]
    if draws.below(2):
        parts.insert(3, draws.one(QUALITIES))
    if draws.below(3) == 0:
        parts.append(draws.one(PLACES))
    if draws.below(4) == 0:
        parts[-1] += ","
        parts += ["and", draws.one(NAMES), draws.one(DEEDS), "it"]
    if draws.below(9) == 0:
        parts += ["for", str(1 + draws.below(40)), "days"]
    text = " ".join(parts)
    return text[0].upper() + text[1:] + "."


def story(size: int, seed: int = 0) -> str:
    """Paragraphs of three to eight sentences, at least `size` characters."""
    draws, paragraphs, length = Draws(seed), list[str](), 0
    while length < size:
        paragraph = " ".join(sentence(draws) for _ in range(3 + draws.below(6)))
        paragraphs.append(paragraph)
        length += len(paragraph) + 2
    return "\n\n".join(paragraphs) + "\n"


def records(count: int) -> list[dict[str, str]]:
    """Instructions with answers, in Alpaca's form."""
    draws, made = Draws(1), []
    for number in range(count):
        who, deed, thing = draws.one(NAMES), draws.one(DEEDS), draws.one(THINGS)
        made.append(
            {
                "instruction": f"What does {who} do on day {number}?",
                "input": f"{who} {deed} the {thing}." if number % 3 else "",
                "output": f"{who} {deed} the {thing}.",
            }
        )
    return made


if __name__ == "__main__":
    FILE.write_text(story(SIZE), encoding="utf-8")
