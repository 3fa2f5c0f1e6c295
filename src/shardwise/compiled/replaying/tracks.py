"""What transfers take one after the other: permutes that share no link run at once, on tracks of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwise.compiled.replaying.traffic import Traffic


@dataclass(slots=True)
class Tracks:
    """The tracks of a program: links that the same permutes take, and lanes where nothing says which links are taken.

    A lane is all links of an axis in one direction. The two ways of a ring over several axes cross an axis in both directions,
    at different chips, and so are on their way at once.

    >>> up, down = Traffic(("x+", "y+", "y-"), 1.0, links=0b0011), Traffic(("x-", "y+", "y-"), 1.0, links=0b1100)
    >>> tracks = Tracks.of([up, down, up])
    >>> tracks.taken_by(up), tracks.taken_by(down)
    (('links 0',), ('links 1',))
    >>> tracks.taken_by(Traffic(("y+",), 1.0))  # a collective that takes all links of an axis
    ('y+', 'links 0', 'links 1')
    """

    alike: list[int] = field(default_factory=list)  # links that each permute takes all or none of
    over: dict[str, int] = field(default_factory=dict)  # of each lane the links of all permutes that go over it

    @classmethod
    def of(cls, permutes: Iterable[Traffic]) -> Tracks:
        """The tracks of a program, from its permutes: links are told apart by which of them take them."""
        made = cls()
        for found in permutes:
            for lane in found.lanes:
                made.over[lane] = made.over.get(lane, 0) | found.links
            left = found.links
            for links in list(made.alike):
                if shared := links & left:
                    made.alike[made.alike.index(links)] = shared
                    made.alike += [links ^ shared] if links != shared else []
                    left ^= shared
            made.alike += [left] if left else []
        return made

    def taken_by(self, found: Traffic) -> tuple[str, ...]:
        """The tracks that a transfer keeps busy: those of its links, or of all of its lanes."""
        links = found.links
        for lane in () if links else found.lanes:
            links |= self.over.get(lane, 0)
        taken = tuple(f"links {number}" for number, alike in enumerate(self.alike) if alike & links)
        return taken if found.links else (*found.lanes, *taken)
