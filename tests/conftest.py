"""One intra-op thread in every test: two on a busy machine can be thirty times slower. No deadlines for the same reason.

CI draws the same examples every time, so that a red run is a change's own; anywhere else, new ones are tried.
"""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("covey", deadline=None, database=None, derandomize="CI" in os.environ)
settings.load_profile("covey")
