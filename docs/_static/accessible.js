// What the theme's pages lack for readers who use no mouse, or no eyes; tests/docs holds the pages against axe's rules.
"use strict";
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
for (const icons of document.querySelectorAll(".content-icon-container")) {
  icons.setAttribute("role", "region");
  icons.setAttribute("aria-label", "This page");
}
// A block that scrolls sideways is reached by the keyboard while it does.
const seen = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const block of document.querySelectorAll("pre, .table-wrapper")) seen.observe(block);
