//! Prints the CRD as YAML: `cargo run --release -p fastllm-crds --example crd > config/crd/fastllmproxies.yaml`.
#![expect(clippy::print_stdout, reason = "the output of the example")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    print!("{}", fastllm_crds::crd_yaml()?);
    Ok(())
}
