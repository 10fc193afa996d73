//! `ddpctl`, the command-line client of the appliance.

fn main() -> std::process::ExitCode {
    ctl::main()
}
