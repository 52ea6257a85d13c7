import { announce } from './announce.ts';
import { readConfig } from './config.ts';
import { explain } from './explain.ts';
import { onStopSignal } from './on-stop-signal.ts';
import { createStandalone, type Terminal } from './standalone.ts';

// If the terminal was closed, writing to it fails. That must not end this process before it has stopped the others.
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
      terminal.say('stopping (press Ctrl-C again to stop immediately)');
      void standalone.stop().then((isClean) => {
        terminal.say('stopped');
        process.exit(isClean ? 0 : 1);
      });
    },
    again: () => {
      standalone.kill();
      process.exit(1);
    },
  });
  terminal.say('starting sluice');
  try {
    for (const line of announce(await standalone.start())) terminal.say(line);
  } catch (error) {
    if (!stopping) throw error;
  }
} catch (error) {
  terminal.problem(explain(error));
  process.exit(1);
}
