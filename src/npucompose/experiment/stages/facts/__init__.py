"""What several stages put down in the same words: of graphs, of stream plans, of a comparison with eager."""
