//! Finds and watches uplinks over netlink.
