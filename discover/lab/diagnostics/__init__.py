"""Measures, never draws: the gradient's variance by cluster, along a run too; clusters from gradients; advice."""
