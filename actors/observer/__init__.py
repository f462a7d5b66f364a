"""The observer: everybody's counters in one place, as a message or as Prometheus reads them."""
