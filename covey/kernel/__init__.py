"""The language an algorithm is written in: nodes, replies, and what nodes remember."""
