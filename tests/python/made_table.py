"""What a call has made of a stage's table (emit/layout.hpp, "groups"), held against the counts of the call."""

from syncopate._syncopate import layout as at


def objection(words, groups, first, tile, columns):
    """Why the table is not one that makes every row of every group in every column once, by slots that wait and post as their
    group does; "" where it is. `groups`: (begin, end) of their rows; `first`: tile of the record of group 0, modulo their number.
    """
    records, slots = words[at.GROUPS], words[at.NUM_SLOTS]
    if words[records] != len(groups) or not len(groups) <= slots <= words[records + 1]:
        return f"{words[records]} groups, {slots} slots"
    record_of = {}
    for record in range(records + 4, records + 4 + at.SLOT_WORDS * len(groups), at.SLOT_WORDS):
        record_of[(words[record + at.SLOT_TILE] - first) % len(groups)] = record
    if len(record_of) < len(groups):
        return "two records are of one group"
    wanted = {
        (group, row, column)
        for group, (begin, end) in enumerate(groups)
        for row in range(begin, max(end, begin + 1), tile)
        for column in range(columns if end > begin else 1)
    }
    as_group = (at.SLOT_WAITS, at.SLOT_WAITS + 1, at.SLOT_PHASES, at.SLOT_MAKES, at.SLOT_MAKES + 1)
    made = []
    for slot in range(at.FIRST_SLOT, at.FIRST_SLOT + at.SLOT_WORDS * slots, at.SLOT_WORDS):
        group = words[slot + at.SLOT_GROUP]
        if group not in record_of or any(
            words[slot + field] != words[record_of[group] + field] for field in as_group
        ):
            return f"a slot does not wait and post as group {group}"
        row, column = divmod(words[slot + at.SLOT_TILE], columns)
        if words[slot + at.SLOT_ROWS] != max(0, min(tile, groups[group][1] - row)):
            return f"a slot has another number of rows from {row} on"
        made.append((group, row, column))
    if sorted(made) != sorted(wanted):
        return f"tiles {sorted(made)} instead of {sorted(wanted)}"
    for group, record in record_of.items():
        own = sum(of == group for of, _, _ in made)
        end = words[record + at.SLOT_MAKES + 1] & ~at.AT_ONCE
        for chunk in range(words[record + at.SLOT_MAKES], end, at.MADE_WORDS):
            right = own if words[chunk + at.MADE_GROUPS] == 1 else slots
            if words[chunk + at.MADE_TILES] != right:
                return f"a chunk of group {group} counts {words[chunk + at.MADE_TILES]} tiles, not {right}"
    return ""
