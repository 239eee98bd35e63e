"""Graphs: edge functions; implicit, sparse and nearest-neighbour graphs; the positions of inputs among the nodes."""
