"""How rows are computed: gradients, descents and losses of many models at once."""
