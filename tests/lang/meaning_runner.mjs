// meaning_runner.c for WebAssembly: node meaning_runner.mjs kernels.wasm image
import { readFileSync, writeFileSync } from "node:fs";

const SLOTS = 4;
const [program, file] = process.argv.slice(2);
const image = readFileSync(file);
const memory = new WebAssembly.Memory({ initial: 64 + Math.ceil(image.length / 65536) });
const module = new WebAssembly.Module(readFileSync(program));
const { exports } = new WebAssembly.Instance(module, { env: { memory } });
const base = Math.ceil(exports.__heap_base.value / 64) * 64;
const slots = memory.buffer.byteLength - 64;
new Uint8Array(memory.buffer).set(image, base);
const view = new DataView(memory.buffer);
const word = (at) => Number(view.getBigUint64(at, true));
let record = base + 16;
for (let k = 0; k < word(base); k++, record += 8 * (1 + SLOTS)) {
  view.setBigUint64(base + 8, BigInt(k), true);
  for (let i = 0; i < SLOTS; i++) {
    view.setBigUint64(slots + 8 * i, BigInt(base + word(record + 8 * (1 + i))), true);
  }
  exports[`k${k}`](slots, 0n, BigInt(word(record)));
}
view.setBigUint64(base + 8, view.getBigUint64(base, true), true);
writeFileSync(file, new Uint8Array(memory.buffer, base, image.length));
