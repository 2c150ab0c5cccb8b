"""Layer types that only forks of Caffe have; docs/forks.md lists them. SSD's are in minicaffe/layers/ssd."""
