"""Ways in which a sum over ranks of a product is made, by the names that measurements give them: a kind, and its number.

beside:N:P   by the chunk engine on N multiprocessors, beside the kernel in P parts
inline:P, fused:P, pulled:P, one_step:P   stored by tiles, copied, read by the sums, or sent to all ranks; in P parts of columns
mixed:N, narrow:N   of each rank's contributions the last N stored (narrow: by narrow tiles)
"""

from syncopate.strategy import Strategy, Tiling


def strategy_of(way: str) -> Strategy:
    """Raises ValueError for what is no way."""
    kind, *numbers = way.split(":")
    try:
        number, parts = [*map(int, numbers), 1, 1][:2] if numbers else (1, 1)
        cut = {"split": number, "split_axis": 1} if number > 1 else {}
        engine = {"backend": "ldst_dedicated", "engine_blocks": number if numbers else 8}
        chosen = {
            "beside": {"pull": True, "split": parts, **engine},
            "inline": {"backend": "tma_inline", **cut},
            "mixed": {"stored": number},
            "narrow": {"stored": number, "tilings": (Tiling(128, 128, 64, 6, -1),)},
            "fused": cut,
            "pulled": {"pull": True, "backend": "ldst_inline", **cut},
            "one_step": {"one_step": True, "backend": "tma_inline", **cut},
        }
        return Strategy(**chosen[kind])
    except (KeyError, ValueError):
        raise ValueError(f"way '{way}': a kind and whole numbers, as bench/ways.py has them") from None
