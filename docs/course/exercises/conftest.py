"""After a failed test of an exercise, pytest shows a hint for the function that it tests."""

import pytest

HINTS = {
    # chapter 1
    "index_of": "How many elements lie between two elements whose first indices differ by 1?",
    "indices_of": "Which index changes with each step in memory, and what is left of the number when it is taken out?",
    "allocations": "The chapter says what a blob does with its memory when it becomes smaller.",
    # chapter 2
    "next_head": "Find first which side the call is for, then ask whether that side is old; the table in `memory/states.pyx` has every case.",
    "copies": "Follow the head from call to call with the function before this one.",
    "mean": "One of the four accessors returns values to read and changes nothing on the device.",
    # chapter 3
    "find": "A name of an inner scope hides the same name further out.",
    "new_parameters": "There are three cases for each name: it is missing, it fits, or its shape differs.",
    "renew": "The workspace lists its names; beware of two layers of which one name begins with the other.",
    # chapter 4
    "inner_product_backward": "Only one product of these matrices has the shape of each gradient; the bias is added to every row.",
    "softmax_loss_gradient": "The softmax does not change if the same number is subtracted from all scores of a row, and the loss is a mean.",
    "numeric_gradient": "The function must get an array in which only one element is changed, a step up and a step down.",
    # chapter 5
    "pooled_size": "It rounds the other way than a convolution, and a window that begins behind the picture is removed only with padding.",
    "im2col": "Begin with one row of the matrix: what does one element of the kernel read at all positions?",
    "weight_gradient": "Each output channel reads only the channels of its own group, and the pictures add up.",
    "receptive_field": "One step in a layer is several pixels of the input, if layers before it have a stride.",
    "needs_columns": "When is the column matrix of a picture the picture itself, pixel for pixel?",
    # chapter 6
    "rate_inv": "Compare the rate after the first iteration with the base rate: does it rise or fall?",
    "momentum_step": "The decay belongs to the gradient, so the rate multiplies it, too; the weights move by the new history.",
    "read_twice": "Two blobs may have one name: a layer in place makes a new one, whose readers are counted from 0.",
    # chapter 7
    "elements_of": "What is a thread's number in the whole grid, and how many threads has the grid?",
    "element_at": "First find the indices of element i, as in chapter 1; then the strides say how far each index moves.",
    "magic_number": "Choose s first: the least one for which 2 to the power s is not below d.",
    "saturate": "A comparison with NaN is false, so the last alternative must be the value itself.",
    # chapter 8
    "round_up": "Try a number of bytes that is a multiple already.",
    "buddy_of": "Write offset and size as binary numbers: in which bit do the two buddies differ?",
    "best_fit": "Leave out what is too small first, and sort by two numbers.",
    "join": "Two blocks are neighbours if one ends where the other begins; a third may follow.",
    # chapter 9
    "convolution_cost": "Each weight is used once for each output position of each picture, and each use is two operations.",
    "attainable": "There are two limits in operations for each second; which one is lower?",
    "lane_index": "Split the channel into the number of its group and its place there; the last group may be only partly filled.",
    "reorders": "Keep in mind which two layouts are there, and that plain order is never lost.",
    # chapter 10
    "mean_picture": "What is the largest number that a uint8 can hold?",
    "crop_corner": "Count the corners that a crop of the whole size of the picture has.",
    "records_of": "How many records do all ranks together read in one step, and what comes after the last record?",
    "decode_datum": "Every field says by its type how many bytes to skip; labels over 127 have several bytes, the lowest bits first.",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    hint = HINTS.get(item.name.removeprefix("test_"))
    if report.failed and report.when == "call" and hint:
        report.sections.append(("Hint", hint))
    return report
