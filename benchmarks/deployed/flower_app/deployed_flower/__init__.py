"""FedAvg in Flower, to time an ask."""
