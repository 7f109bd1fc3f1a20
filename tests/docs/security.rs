use testbed::Bed;

use crate::{page::Page, shell::Shell};

#[tokio::test]
async fn security() {
    let bed = Bed::shared().await;
    let shell = Shell::with(&bed, "default").await;
    let mut page = Page::open("docs/security.md");
    let rights = page.run(&shell, "kubectl auth can-i --list").await;
    assert!(rights.contains("jobs.batch"), "{rights}");
    assert!(!rights.contains("secrets"), "{rights}");
}
