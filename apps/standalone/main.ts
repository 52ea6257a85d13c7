import { Command } from 'commander';
import { readEnvFile } from '#libs/kernel/read-env.ts';
import { version } from '#libs/kernel/version.ts';
import { describeUnknownVariables } from '../known-variables.ts';
import { announce } from './announce.ts';
import { readConfig } from './config.ts';
import { explain } from './explain.ts';
import { onStopSignal } from './processes/on-stop-signal.ts';
import { createStandalone, type Terminal } from './standalone.ts';

const { PORT, HOST, SLUICE_DATA_DIR, SLUICE_LOG_LEVEL } = readConfig({});
const settings = [
  [`PORT=${PORT}`, 'port of the API'],
  [`HOST=${HOST}`, 'address of the API; 0.0.0.0 for all networks of this machine'],
  [`SLUICE_DATA_DIR=${SLUICE_DATA_DIR}`, 'database, files, keys and logs'],
  ['DATABASE_URL=postgres://…', 'your own Postgres instead of the embedded one'],
  ['SLUICE_MASTER_KEY=…', 'encrypts stored provider keys; absent: generated, in master.key of the data folder'],
  ['SLUICE_BOOTSTRAP_KEY=…', 'the first admin key; absent: generated, in admin.key of the data folder'],
  ['SLUICE_EGRESS_ALLOW=host:port', 'private addresses that Sluice is allowed to call, such as your own model server'],
  [`SLUICE_LOG_LEVEL=${SLUICE_LOG_LEVEL}`, 'minimum severity of lines in the logs folder'],
].map(([setting = '', meaning]) => `  ${setting.padEnd(29)} ${meaning}`);

new Command('npm start')
  .description(
    'Runs the whole platform on this machine until Ctrl-C: API, worker, a simulator that stands in for a provider, and ' +
      'an embedded Postgres, unless DATABASE_URL is set.',
  )
  .addHelpText(
    'after',
    `
Settings are environment variables, or lines of a file named .env in the current folder. The most common ones:
${settings.join('\n')}
docs/configuration.md describes all of them.

Examples:
  npm start
  PORT=9000 SLUICE_DATA_DIR=/var/lib/sluice npm start
  SLUICE_EGRESS_ALLOW=127.0.0.1:11434 npm start         with Ollama on this machine
`,
  )
  .version(version)
  .showHelpAfterError('"npm start -- --help" lists the settings.')
  .allowExcessArguments(false)
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2))
  .parse();

// If the terminal was closed, writing to it fails. That must not end this process before it has stopped the others.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
const terminal: Terminal = {
  say: (line) => process.stdout.write(`${line}\n`),
  problem: (line) => process.stderr.write(`${line}\n`),
};

try {
  const hasEnvFile = readEnvFile();
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
  terminal.say(`starting sluice${hasEnvFile ? ', with the settings of .env' : ''}`);
  for (const text of describeUnknownVariables()) terminal.problem(text);
  try {
    for (const line of announce(await standalone.start())) terminal.say(line);
  } catch (error) {
    if (!stopping) throw error;
  }
} catch (error) {
  terminal.problem(explain(error));
  process.exit(1);
}
