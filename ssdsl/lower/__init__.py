"""From a Plan to a Schedule: layouts, communication, blocks, tasks and their order."""
