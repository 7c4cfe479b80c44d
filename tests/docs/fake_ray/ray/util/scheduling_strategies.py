"""Which bundle a task uses."""


class PlacementGroupSchedulingStrategy:
    """A bundle of a group."""

    def __init__(self, placement_group, placement_group_bundle_index):
        self.group, self.index = placement_group, placement_group_bundle_index
