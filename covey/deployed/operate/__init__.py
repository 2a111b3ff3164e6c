"""Status, orders and certificates of running nodes."""
