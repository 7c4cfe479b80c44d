"""The table of operators: one row says everything that ssdsl knows of one operator."""
