"""What torchtitan's configurations say, in each of the forms that they have had."""
