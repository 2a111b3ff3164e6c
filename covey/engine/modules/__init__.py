"""Any torch module, computed for many models at once."""
