import { deploymentSettings } from '#libs/contracts/virtual-keys.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { SettingForm } from '#libs/providers/provider.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';
import { splitSettings } from './provider-settings.ts';

/** One of several deployments that a credential serves, with its settings. */
export type Deployment = {
  alias: string | null;
  is_default: boolean;
  settings: Readonly<Record<string, string>>;
};

/** A deployment in the form of requests: its settings have Portkey's names. */
export type GivenDeployments = readonly (Readonly<Record<string, unknown>> & {
  alias?: string | null;
  is_default?: boolean | null;
})[];

const forms: Readonly<Record<string, SettingForm>> = settingFields;
const settingNames = [...new Set(deploymentSettings.map(([, setting]) => setting))];
const nameSetting = settingNames.find((setting) => forms[setting]?.ofDeployment === 'name') as string;

const nameOf = ({ settings }: Deployment): string => settings[nameSetting] ?? '';
const readModel = (deployment: Deployment): string => deployment.alias ?? nameOf(deployment);

/**
 * Reads the list of deployments of a request. The only deployment of a list is its default. Throws invalid_request for
 * a deployment without a name, two with the same alias, two defaults, and a provider without deployments.
 */
export function readDeployments(provider: string, given: GivenDeployments): Deployment[] {
  const deployments = given.map((item, index) => {
    const named = deploymentSettings.filter(([name]) => item[name] != null);
    const wanted = Object.fromEntries(named.map(([name, setting]) => [setting, item[name]]));
    const { settings } = splitSettings(provider, wanted);
    const deployment = {
      alias: item.alias ?? null,
      is_default: item.is_default === true || given.length === 1,
      settings,
    };
    if (nameOf(deployment) === '') {
      const param = `deploymentConfig[${index}].deploymentName`;
      throw invalid(`Missing required parameter: '${param}'.`, param, 'missing_required_parameter');
    }
    return deployment;
  });
  const models = deployments.map(readModel);
  const repeated = models.find((model, index) => models.indexOf(model) !== index);
  if (repeated !== undefined) {
    throw invalid(
      `Invalid 'deploymentConfig': two deployments have the model '${repeated}'. Give each deployment its own 'alias'.`,
    );
  }
  if (deployments.filter(({ is_default: isDefault }) => isDefault).length > 1)
    throw invalid("Invalid 'deploymentConfig': only one deployment can have 'is_default'.");
  return deployments;
}

/**
 * Throws invalid_request for a change of one deployment's setting on a credential that has a list of them, because it
 * would be ambiguous which deployment is meant.
 */
export function refuseLooseSetting(given: Readonly<Record<string, unknown>>): void {
  const setting = settingNames.find((name) => name in given);
  if (setting === undefined) return;
  const message = `Invalid '${setting}': this credential has several deployments. Send all of them in 'deploymentConfig', or send an empty list there to go back to a single deployment.`;
  throw invalid(message, setting);
}

/** Settings without those that belong to a deployment. */
export const withoutDeployment = (settings: Readonly<Record<string, string>>): Record<string, string> =>
  Object.fromEntries(Object.entries(settings).filter(([name]) => !(settingNames as string[]).includes(name)));

/** The settings of a list's default deployment. */
export const defaultSettings = (deployments: readonly Deployment[]): Readonly<Record<string, string>> =>
  deployments.find(({ is_default: isDefault }) => isDefault)?.settings ?? {};

/**
 * The settings for a call of `model`: those of the deployment with this alias or name, otherwise the default ones. Throws
 * invalid_request when the list has neither a matching deployment nor a default.
 */
export function settingsForModel(
  key: { settings: Readonly<Record<string, string>>; deployments?: readonly Deployment[]; noun: string; slug: string },
  model: string | null,
): Readonly<Record<string, string>> {
  const { settings, deployments = [], noun, slug } = key;
  if (deployments.length === 0 || model === null) return settings;
  const found =
    deployments.find(({ alias }) => alias === model) ?? deployments.find((deployment) => nameOf(deployment) === model);
  if (found) return { ...settings, ...found.settings };
  if (nameSetting in settings) return settings;
  const message = `The ${noun} '${slug}' has no deployment for the model '${model.slice(0, 100)}' and no default deployment. Available models: ${deployments.map(readModel).join(', ')}.`;
  throw invalid(message, 'model', 'deployment_not_found');
}

/** The list in the form of requests. */
export const shownDeployments = (deployments: readonly Deployment[]): object[] =>
  deployments.map(({ alias, is_default: isDefault, settings }) => ({
    ...Object.fromEntries(
      settingNames.flatMap((setting) =>
        settings[setting] === undefined ? [] : [[forms[setting]?.portkeyName, settings[setting]]],
      ),
    ),
    ...(alias === null ? {} : { alias }),
    is_default: isDefault,
  }));

const invalid = (message: string, param = 'deploymentConfig', code = 'invalid_value'): GatewayError =>
  new GatewayError('invalid_request', code, message, { param });
