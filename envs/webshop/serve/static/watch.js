// Arrow keys go through the steps of a replay, and the agent's view stays as open as it was. All else works without
// this file.
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  const id = { ArrowLeft: "previous", ArrowRight: "next" }[event.key];
  const link = id && document.getElementById(id);
  if (link) {
    event.preventDefault();
    link.click();
  }
});
document.querySelector(".steps [aria-current]")?.scrollIntoView({ block: "nearest" });
const panel = document.getElementById("agent");
if (panel) {
  panel.open = sessionStorage.getItem("agent") === "open";
  panel.addEventListener("toggle", () => sessionStorage.setItem("agent", panel.open ? "open" : ""));
}
