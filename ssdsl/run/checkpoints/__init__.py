"""Checkpoints and the files of a single device: conversion and comparison."""
