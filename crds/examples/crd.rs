//! Prints the definition of the resource: `cargo run --release -p fastllm-crds --example crd > config/crd/fastllmproxies.yaml`.
#![expect(
    clippy::print_stdout,
    reason = "printing the definition is what this is for"
)]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", fastllm_crds::crd_yaml()?);
    Ok(())
}
