// Solves conda environments with rattler's solver:
//
//   node solve.mjs MODULES <CASES >RESULTS
//
// MODULES is a directory with node_modules. CASES is {"root": DIR, "cases": [{"specs": [...],
// "channels": [...], "platforms": [...], "virtual": [{"name", "version", "build"}]}]}. A channel
// is a directory below root that has SUBDIR/repodata.json. RESULTS is a list with {"packages":
// ["name=version=build"]} or {"error": "..."} for each case.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const require = createRequire(resolve(process.argv[2], "x"));
const { root, cases } = JSON.parse(readFileSync(0, "utf8"));
const host = "http://localhost/";

// rattler reads the indexes with fetch. A channel without a directory for a platform has no
// packages there; without an index, rattler would fail.
globalThis.fetch = async (request) => {
  const path = new URL(request.url).pathname;
  let response;
  try {
    response = new Response(readFileSync(join(root, path)));
  } catch {
    response = path.endsWith("/repodata.json") ? new Response('{"packages":{}}') : new Response("", { status: 404 });
  }
  Object.defineProperty(response, "url", { value: request.url });
  return response;
};

// rattler's function for node knows no virtual packages. A locked package has the same effect:
// rattler can choose no other of its name.
function locked({ name, version, build }) {
  const filename = `${name}-${version}-${build}.conda`;
  return { url: host + "virtual/" + filename, packageName: name, version, build, filename };
}

// solve rejects if rattler panics, as it does for requirements of packages that it cannot parse. Its
// program must then be loaded again.
function solve(c) {
  return new Promise((done, fail) => {
    const panic = (error) => {
      delete require.cache[require.resolve("@conda-org/rattler")];
      fail(new Error(`panic: ${error}`));
    };
    process.once("uncaughtException", panic);
    const { simpleSolve } = require("@conda-org/rattler");
    simpleSolve(c.specs, c.channels.map((name) => host + name), c.platforms, c.virtual.map(locked))
      .then(done, fail)
      .finally(() => process.off("uncaughtException", panic));
  });
}

const results = [];
for (const c of cases) {
  try {
    const packages = await solve(c);
    results.push({
      packages: packages.filter((p) => !p.packageName.startsWith("__")).map((p) => `${p.packageName}=${p.version}=${p.build}`),
    });
  } catch (error) {
    results.push({ error: String(error) });
  }
}
process.stdout.write(JSON.stringify(results));
