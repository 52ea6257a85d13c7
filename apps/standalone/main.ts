import { announce } from './announce.ts';
import { readConfig } from './config.ts';
import { explain } from './explain.ts';
import { onStopSignal } from './on-stop-signal.ts';
import { createStandalone, type Terminal } from './standalone.ts';

// A terminal that was closed must not end the platform before it is stopped in order.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
const terminal: Terminal = {
  say: (line) => process.stdout.write(`${line}\n`),
  problem: (line) => process.stderr.write(`${line}\n`),
};

try {
  const config = readConfig();
  const standalone = createStandalone(config, terminal);
  let stopping = false;
  onStopSignal({
    first: () => {
      stopping = true;
      terminal.say('stopping (once more to stop at once)');
      void standalone.stop().then((inOrder) => {
        terminal.say('stopped');
        process.exit(inOrder ? 0 : 1);
      });
    },
    again: () => {
      standalone.kill();
      process.exit(1);
    },
  });
  terminal.say('sluice starts');
  try {
    for (const line of announce(await standalone.start())) terminal.say(line);
  } catch (error) {
    if (!stopping) throw error;
  }
} catch (error) {
  terminal.problem(explain(error));
  process.exit(1);
}
