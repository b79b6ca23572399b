"""Mends torchrun of torch 1.13 with Python 3.11 and newer, in which the members of a Flag without bits have no name.

Debian 12 has these versions. Later versions of torch need no change.
"""

import sys

if "torch.distributed.run" in sys.orig_argv:
    from torch.distributed.elastic.multiprocessing import api

    api.Std.from_str = classmethod(lambda cls, text: cls(int(text)))
