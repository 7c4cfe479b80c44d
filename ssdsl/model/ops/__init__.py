"""The table of operators: one row has everything that ssdsl knows of one operator."""
