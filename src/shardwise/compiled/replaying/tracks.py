"""What transfers take one after the other: permutes whose shards find room on all their links run at once, on their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwise.compiled.replaying.traffic import Traffic


@dataclass(slots=True)
class Tracks:
    """The tracks of a program: links that the same permutes take, and lanes where nothing says which links are taken.

    A lane is all links of an axis in one direction. The two ways of a ring over several axes cross an axis in both directions,
    at different chips, and so are on their way at once. So are those that share a link which others hold up: where two
    shards of a permute share its worst link, a link that one of them passes has room for another one.

    >>> up, down = Traffic(("x+", "y+", "y-"), 1.0, links=(0b0011,)), Traffic(("x-", "y+", "y-"), 1.0, links=(0b1100,))
    >>> tracks = Tracks.of([up, down, up])
    >>> tracks.taken_by(up), tracks.taken_by(down)
    (('links 0',), ('links 1',))
    >>> tracks.taken_by(Traffic(("y+",), 1.0))  # a collective that takes all links of an axis
    ('y+', 'links 0', 'links 1')
    >>> up, down = Traffic(("x+",), 1.0, links=(0b011, 0b001)), Traffic(("x+",), 1.0, links=(0b110, 0b100))
    >>> tracks = Tracks.of([up, down])
    >>> sorted(set(tracks.taken_by(up)) & set(tracks.taken_by(down)))
    []
    """

    alike: list[int] = field(default_factory=list)  # links that as many shards of each permute pass
    over: dict[str, int] = field(default_factory=dict)  # of each lane the links of all permutes that go over it
    places: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = field(default_factory=dict)  # of each permute on such links
    room: int = 1  # shards that pass a link at once, of the permute whose worst link most pass

    @classmethod
    def of(cls, permutes: Iterable[Traffic]) -> Tracks:
        """The tracks of a program, from its permutes: links are told apart by how many of their shards pass them."""
        made, known = cls(), dict[tuple[int, ...], None]()
        for found in permutes:
            for lane in found.lanes if found.links else ():
                made.over[lane] = made.over.get(lane, 0) | found.links[0]
            known[found.links] = None
            for left in found.links:
                for links in list(made.alike):
                    if shared := links & left:
                        made.alike[made.alike.index(links)] = shared
                        made.alike += [links ^ shared] if links != shared else []
                        left ^= shared
                made.alike += [left] if left else []
        made.room = max((len(links) for links in known), default=1)
        for links in made.alike:
            first = 0
            for taken in known:
                passing = sum(1 for each in taken if each & links)
                wanted = -(-made.room * passing // max(1, len(taken)))
                made.places[links, taken] = tuple(dict.fromkeys((first + k) % made.room for k in range(wanted)))
                first += wanted
        return made

    def taken_by(self, found: Traffic) -> tuple[str, ...]:
        """The tracks that a transfer keeps busy: those of its links, as many as its shards fill; or of all of its lanes."""
        lanes, over = () if found.links else found.lanes, 0
        for lane in lanes:
            over |= self.over.get(lane, 0)
        taken = []
        for number, links in enumerate(self.alike):
            places = self.places.get((links, found.links), ()) if found.links else range(self.room) if links & over else ()
            taken += [f"links {number}, place {place}" if self.room > 1 else f"links {number}" for place in places]
        return (*lanes, *taken)
