"""One intra-op thread in every test: two on a busy machine can be thirty times slower."""

import torch

torch.set_num_threads(1)
