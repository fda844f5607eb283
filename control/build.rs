//! Migrations are embedded by a macro, which cargo does not see as a file that
//! the crate depends on.

fn main() {
    println!("cargo::rerun-if-changed=../migrations");
}
