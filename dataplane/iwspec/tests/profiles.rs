//! Every deviation in the profiles names an existing case.

use std::path::Path;

use iwspec::catalogue::Catalogue;
use iwspec::profile::Profile;

#[test]
fn profiles_name_existing_cases() {
    let cases = Catalogue::built_in().expect("good files").cases;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    for file in std::fs::read_dir(directory).expect("profiles") {
        let path = file.expect("entry").path();
        let profile = Profile::read(&path).expect("a good profile");
        profile.check(cases.iter().map(|c| c.id.as_str())).expect("known cases");
        assert!(!profile.deviations.is_empty(), "{}", path.display());
    }
}
