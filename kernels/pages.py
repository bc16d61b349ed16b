"""One side of a read, key or value, as a kernel sees it. Needs no pypto."""

from collections.abc import Sequence
from dataclasses import dataclass

from .tiling import UNIFIED_BUFFER_BYTES, VECTOR_CORES

MOST_TILE_BYTES = UNIFIED_BUFFER_BYTES * 2 // 3
LEAST_TILE_BYTES = 4096
TASK_PIECES = 8  # that tiling.MERGED makes one task of
MOST_PIECES = 16  # pieces of a token in one iteration: more make the compiled program longer and nothing faster


@dataclass(frozen=True, slots=True)
class Pages:
    """The tokens of one cache as rows of its memory, and the rows that they are copied to.

    dtype: carrier of both. piece: elements in line; pieces: how many of them make a token.
    width: elements of a memory row, the distance of two tokens of a block; column: where the first piece begins in it.
    piece_rows, piece_columns: from one piece of a token to the next, in memory rows and in columns.
    block_rows: memory rows from one block to the next.
    out_width: elements of a row that is written; out_column: where the token begins in it.
    """

    dtype: str
    piece: int
    pieces: int
    width: int
    column: int
    piece_rows: int
    piece_columns: int
    block_rows: int
    out_width: int
    out_column: int

    @property
    def chunk(self) -> int:
        """Pieces that one iteration copies: a divisor of ``pieces``."""
        return max(number for number in range(1, min(self.pieces, MOST_PIECES) + 1) if self.pieces % number == 0)

    @property
    def padded_piece(self) -> int:
        """``piece``, rounded up to 32 bytes."""
        unit = 32 // self._element_bytes
        return -(-self.piece // unit) * unit

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece in the unified buffer."""
        return self.padded_piece * self._element_bytes

    @property
    def _element_bytes(self) -> int:
        return {"int8": 1, "int32": 4, "float32": 4}.get(self.dtype, 2)


def choose_tile(num_tokens: int, block_size: int, sides: Sequence[Pages]) -> int:
    """Rows of a block that a task copies: a block, or a part of it while all parts run at once on the cores.

    Figures of PyPTO's cost model (512 bfloat16, 128-row blocks, 1024 tokens): tiles of 128, 64, 32 and 16 rows take
    3.5, 2.6, 6.3 and 10.1 us. Two thirds of the unified buffer hold any one.
    """
    row_bytes = max(pages.piece_bytes for pages in sides)
    task_bytes = max(pages.piece_bytes * min(pages.pieces, TASK_PIECES) for pages in sides)
    tasks = sum(-(-pages.pieces // TASK_PIECES) for pages in sides)
    tile = min(block_size, max(1, MOST_TILE_BYTES // row_bytes))
    tile = -(-block_size // -(-block_size // tile))  # parts of a block as long as one another
    while tile // 2 * task_bytes >= LEAST_TILE_BYTES and -(-num_tokens // (tile // 2)) * tasks <= VECTOR_CORES:
        tile //= 2
    return tile
