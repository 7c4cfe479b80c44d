"""The Evoformer of AlphaFold 2 (Jumper et al. 2021, 10.1038/s41586-021-03819-2), with recycling and two of its losses.

The trunk is the stack of blocks of algorithm 6 of the paper's supplement. It runs `passes` times: each pass but the
first reads the results of the one before it (algorithm 32), and only the last one has gradients. The parts around the
trunk are as simple as possible: sequences are embedded by their symbols (algorithm 3, without clusters' profiles and
templates), and there is no structure module. The loss is that of masked symbols times 2 plus that of the distogram
times 0.3, with the weights of the supplement's equation 7. There is no dropout, and no second stack for extra
sequences.

- `87m` has the numbers of the paper: 48 blocks, 256 numbers a residue of a sequence and 128 a pair, heads of 32.
- The others are those of the SuperScaler paper's evaluation (Lin et al. 2023, arXiv 2301.08984): 64 blocks of 768 and
  384, 96 and 128 blocks of 1024 and 512; there are 128 sequences of 256 residues. A sample is one protein; a batch has
  128, as in the first training of AlphaFold.
"""

from typing import ClassVar

from ssdsl.model.zoo.family import ModelFamily, ModelSize

SYMBOLS = 23  # 20 amino acids, an unknown one, a gap, a mask
BINS = 64  # of distances
NEAR = 32  # residues farther apart than that all count as equally far


class AlphaFold2(ModelSize):
    """The numbers of an Evoformer; `msa` and `pair` are its widths, of a residue of a sequence and of a pair.

    `head` is the width of a head and `outer` that of the outer product; the trunk runs `passes` times.
    """

    NET: ClassVar = "alphafold2:AlphaFold2Net"
    SUMMARY: ClassVar = "{blocks} blocks, {msa} and {pair} wide, {sequences} x {residues} residues, {passes} passes"
    AXES: ClassVar = {
        "target": ("batch", "residues"),
        "msa": ("batch", "sequences", "residues"),
        "labels": ("batch", "sequences", "residues"),
        "distances": ("batch", "residues", "residues"),
    }
    blocks: int
    msa: int
    pair: int
    sequences: int
    residues: int
    batch: int
    head: int = 32
    outer: int = 32
    passes: int = 3
    dtype: str = "fp32"
    attention: str = "sdpa"


SIZES = {
    "tiny": AlphaFold2(blocks=2, msa=16, pair=8, sequences=8, residues=12, batch=8, head=4, outer=4),
    "87m": AlphaFold2(blocks=48, msa=256, pair=128, sequences=128, residues=256, batch=128),
    "1b": AlphaFold2(blocks=64, msa=768, pair=384, sequences=128, residues=256, batch=128),
    "2.6b": AlphaFold2(blocks=96, msa=1024, pair=512, sequences=128, residues=256, batch=128),
    "3.5b": AlphaFold2(blocks=128, msa=1024, pair=512, sequences=128, residues=256, batch=128),
}
FAMILY = ModelFamily("AlphaFold 2's Evoformer, recycled, masked symbols and distances", SIZES)
