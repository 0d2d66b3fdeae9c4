//! An image for attacks in containers, made of programs of this machine.
//!
//! Invariant: nothing is pulled; the image's own user is root and its own
//! program is an attack, so that both are seen when they are used.

use std::sync::Arc;

use fumehood_host_fns::NativeTier as _;
use fumehood_native_tiers::{DockerTier, ImageId};

use super::machine;

/// Copies the programs and what they load into a directory and loads it.
const MAKE: &str = r#"
set -e; top=$(mktemp -d); trap 'rm -rf "$top"' EXIT; cd "$top"
mkdir -p r/tmp r/work r/home/agent r/root r/etc r/proc r/dev r/sys r/usr/bin r/bin
for p in /bin/sh /bin/bash /bin/cat /bin/ls /bin/grep /bin/true /usr/bin/id /usr/bin/head /usr/bin/unshare; do
  mkdir -p r$(dirname $p); cp -L $p r$p
  for l in $(ldd $p | grep -o '/[^ ]*'); do mkdir -p r$(dirname $l); cp -Ln $l r$l; done
done
tar -C r --owner=0 --group=0 -c . | docker import \
  --change 'USER 0' --change 'ENTRYPOINT ["/bin/sh", "-c", "id -u; echo REACHED"]' - fumehood-test:attacks
"#;

/// The tier with that image; `None` where no engine answers.
pub(super) fn find() -> Option<(Arc<DockerTier>, ImageId)> {
    let socket = DockerTier::find_socket().filter(|socket| socket.exists())?;
    let made = machine::shell_output(MAKE).ok()?;
    let image = ImageId::parse(made.trim()).ok()?;
    let tier = DockerTier::new(&socket, image.clone());
    tier.prepare(&[]).ok()?;
    Some((Arc::new(tier), image))
}
