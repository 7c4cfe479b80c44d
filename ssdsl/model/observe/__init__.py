"""What torch alone knows of the calls of a graph, found when it is captured: nothing below asks torch again."""
