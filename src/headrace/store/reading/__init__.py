"""Reading over a network: many requests in flight, tried again, hedged, and a process of its own."""
