"""What a graph is: edge functions, implicit graphs, and where inputs lie among the nodes."""
