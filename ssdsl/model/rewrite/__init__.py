"""What capture writes otherwise: calls in other words that plans can split, random numbers as functions, no sorts."""
