"""Drawings of JaxMARL environments: particles, battles and kitchens."""

from rollax.canvas.drawing import Drawing
from rollax.environments.suites.jaxmarl import battle_drawing, kitchen_drawing, particle_drawing

DRAWINGS: dict[str, Drawing] = {
    "MPE_*": Drawing(
        particle_drawing.draw_particles,
        8,
        legend=particle_drawing.particle_legend,
        cameras=particle_drawing.particle_cameras,
    ),
    "*SMAX": Drawing(
        battle_drawing.draw_battle,
        6,
        notes=battle_drawing.battle_notes,
        legend=battle_drawing.battle_legend,
        cameras=battle_drawing.battle_cameras,
    ),
    "overcooked": Drawing(
        kitchen_drawing.draw_overcooked,
        6,
        legend=kitchen_drawing.overcooked_legend,
        action_names=kitchen_drawing.OVERCOOKED_ACTIONS,
    ),
    "overcooked_v2": Drawing(
        kitchen_drawing.draw_overcooked_v2,
        6,
        legend=kitchen_drawing.overcooked_legend,
        action_names=kitchen_drawing.OVERCOOKED_V2_ACTIONS,
    ),
}
