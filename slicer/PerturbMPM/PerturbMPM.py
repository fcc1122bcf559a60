"""3D Slicer: run perturb-mpm, look at its uncertainty, correct its labels and hand them back."""

import shutil
import sys
from pathlib import Path

import ctk
import qt
import vtk
from PerturbMPMLib.logic import RunFolder, call, combine_segments, run_arguments
from slicer.ScriptedLoadableModule import (
    ScriptedLoadableModule,
    ScriptedLoadableModuleLogic,
    ScriptedLoadableModuleWidget,
)

import slicer

HELP = """Where is a segmentation uncertain, and how far? Open the folder of a run, or run a case;
then go through the list of places, correct with the Segment Editor, and hand the correction back:
the CRF changes what depends on it, and the volumes. Everything computes in a process of its own.
Not a medical device."""


class PerturbMPM(ScriptedLoadableModule):
    """What Slicer shows of the module before it is opened."""

    def __init__(self, parent):
        super().__init__(parent)
        parent.title = "Perturb-and-MPM"
        parent.categories = ["Segmentation"]
        parent.contributors = ["The perturb-mpm developers"]
        parent.helpText = HELP
        parent.acknowledgementText = "Perturb-and-MPM: arXiv 1703.00312"


class PerturbMPMLogic(ScriptedLoadableModuleLogic):
    """Runs, and their nodes in the scene."""

    def __init__(self):
        super().__init__()
        self.run = None
        self.segmentation = None

    @property
    def python(self):
        """Slicer's own interpreter, as a program."""
        return shutil.which("PythonSlicer") or sys.executable

    def require_package(self):
        """Install perturb-mpm into Slicer's Python from this checkout, if the user agrees."""
        try:
            import perturb_mpm  # noqa: F401
        except ImportError:
            checkout = Path(__file__).resolve().parents[2]
            if not (checkout / "pyproject.toml").is_file():
                raise  # the name is nobody's on PyPI: nothing is taken from there
            question = "perturb-mpm is not in Slicer's Python. Install it now (about 450 MB)?"
            if not slicer.util.confirmOkCancelDisplay(question):
                raise
            slicer.util.pip_install(str(checkout))

    def open(self, folder):
        """Load the maps of a run: segmentation, first image if it is in the scene, entropy."""
        self.run = RunFolder(Path(folder))
        written = self.run.segmentation(self.python, Path(slicer.app.temporaryPath))
        self.segmentation = slicer.util.loadSegmentation(str(written))
        entropy = slicer.util.loadVolume(str(self.run.find("entropy")), {"show": False})
        entropy.SetName("entropy, bits")
        entropy.CreateDefaultDisplayNodes()
        entropy.GetDisplayNode().SetAndObserveColorNodeID("vtkMRMLColorTableNodeFileMagma.txt")
        slicer.util.setSliceViewerLayers(foreground=entropy, foregroundOpacity=0.4)
        self.segmentation.SetReferenceImageGeometryParameterFromVolumeNode(entropy)
        self.entropy = entropy

    def write_correction(self):
        """Write the edited segmentation as a label map on the run's grid."""
        ids = vtk.vtkStringArray()
        self.segmentation.GetSegmentation().GetSegmentIDs(ids)
        names = [ids.GetValue(index) for index in range(ids.GetNumberOfValues())]
        masks = {
            name: slicer.util.arrayFromSegmentBinaryLabelmap(self.segmentation, name, self.entropy)
            for name in names
        }
        background = next(iter(self.run.labels))
        values = combine_segments(masks, self.run.labels, background)
        matrix = vtk.vtkMatrix4x4()
        self.entropy.GetIJKToRASMatrix(matrix)
        node = slicer.util.addVolumeFromArray(
            values, ijkToRAS=matrix, nodeClassName="vtkMRMLLabelMapVolumeNode"
        )
        path = Path(slicer.app.temporaryPath) / "perturb-mpm-correction.nii.gz"
        slicer.util.saveNode(node, str(path))
        slicer.mrmlScene.RemoveNode(node)
        return path

    def show(self, place):
        """Go to a place in all slice views."""
        slicer.modules.markups.logic().JumpSlicesToLocation(*place.mm, True)


class PerturbMPMWidget(ScriptedLoadableModuleWidget):
    """The panel."""

    def setup(self):
        """Build the panel."""
        super().setup()
        self.logic = PerturbMPMLogic()
        self.places = []
        self.images, self.probabilities = qt.QLineEdit(), qt.QLineEdit()
        self.options, self.folder = qt.QLineEdit(), ctk.ctkPathLineEdit()
        self.folder.filters = ctk.ctkPathLineEdit.Dirs
        for edit in (self.images, self.probabilities):
            edit.setPlaceholderText("files, separated by ;")
        self._section(
            "Run a case",
            [("Images", self.images), ("Probabilities", self.probabilities)],
            [("More options", self.options), self._button("Run", self.onRun)],
        )
        self.answer, self.list = qt.QLabel(), qt.QListWidget()
        self.answer.setWordWrap(True)
        self.list.connect("currentRowChanged(int)", self.onPlace)
        self._section(
            "Look",
            [("Folder of the run", self.folder), self._button("Open", self.onOpen)],
            [("", self.answer), ("Places", self.list)],
        )
        self.editor = slicer.qMRMLSegmentEditorWidget()
        self.editor.setMRMLScene(slicer.mrmlScene)
        node = slicer.mrmlScene.AddNewNodeByClass("vtkMRMLSegmentEditorNode")
        self.editor.setMRMLSegmentEditorNode(node)
        self._section(
            "Correct",
            [("", self.editor)],
            [self._button("Hand the correction back", self.onCorrect)],
        )
        self.layout.addStretch(1)

    def _section(self, title, *rows):
        box = ctk.ctkCollapsibleButton()
        box.text = title
        self.layout.addWidget(box)
        form = qt.QFormLayout(box)
        for words, widget in (row for part in rows for row in part):
            form.addRow(words, widget)

    def _button(self, words, action):
        button = qt.QPushButton(words)
        button.connect("clicked()", action)
        return "", button

    def onRun(self):
        """Run a case, and open what it wrote."""
        images, maps = (
            [Path(part.strip()) for part in edit.text.split(";") if part.strip()]
            for edit in (self.images, self.probabilities)
        )
        with slicer.util.tryWithErrorDisplay("perturb-mpm failed", waitCursor=True):
            self.logic.require_package()
            output = Path(self.folder.currentPath)
            call(self.logic.python, run_arguments(images, maps, output, self.options.text.split()))
            slicer.util.loadVolume(str(images[0]))
            self._open()

    def onOpen(self):
        """Open the folder of a run."""
        with slicer.util.tryWithErrorDisplay("The run cannot be opened", waitCursor=True):
            self.logic.require_package()
            self._open()

    def onCorrect(self):
        """Hand the edited segmentation back, and show what follows from it."""
        with slicer.util.tryWithErrorDisplay("The correction was not taken", waitCursor=True):
            self.logic.run.correct(self.logic.python, self.logic.write_correction())
            slicer.mrmlScene.RemoveNode(self.logic.segmentation)
            self._open()

    def onPlace(self, row):
        """Go to the place that was chosen."""
        if 0 <= row < len(self.places):
            self.logic.show(self.places[row])

    def _open(self):
        self.logic.open(self.folder.currentPath)
        self.places = self.logic.run.read_places(self.logic.python)
        self.answer.text = self.logic.run.answer
        self.list.clear()
        self.list.addItems([place.words for place in self.places])
        self.editor.setSegmentationNode(self.logic.segmentation)
        self.editor.setSourceVolumeNode(self.logic.entropy)
